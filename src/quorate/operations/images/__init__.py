"""Images and templates: upload, download."""
