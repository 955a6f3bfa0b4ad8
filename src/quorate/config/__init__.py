"""Settings from arguments, environment, a TOML file and `.env`, in order of precedence."""

from quorate.config.clusters import Access, ClusterSettings
from quorate.config.settings import Approval, Settings, load
from quorate.config.sources import ConfigError

__all__ = ["Access", "Approval", "ClusterSettings", "ConfigError", "Settings", "load"]
