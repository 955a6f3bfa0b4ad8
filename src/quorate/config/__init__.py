"""Where the settings come from: arguments, environment, `.env` and a TOML file, strongest first."""

from quorate.config.loading import load
from quorate.config.settings import Access, Approval, ClusterSettings, ConfigError, Settings

__all__ = ["Access", "Approval", "ClusterSettings", "ConfigError", "Settings", "load"]
