"""Inside guests: commands, files, services, facts."""
