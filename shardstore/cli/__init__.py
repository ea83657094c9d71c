"""The command line: one file a command, each imported when it is called (see `main`)."""
