"""Settings from arguments, environment, a TOML file and `.env`, in order of precedence."""

from quorate.config.loader import load
from quorate.config.settings import Access, Approval, ClusterSettings, ConfigError, Settings

__all__ = ["Access", "Approval", "ClusterSettings", "ConfigError", "Settings", "load"]
