"""`r3 view` in a real browser: Debian's Chromium, driven by Playwright."""
