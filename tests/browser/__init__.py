"""The console and the views in a real browser: Debian's Chromium, driven by Playwright."""
