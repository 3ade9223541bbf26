"""Tasks that come with DDPJob: for a first run, for tests, and to copy from. Each says `task(…) -> Task`."""
