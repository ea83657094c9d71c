"""The commands of `trainer`, one file each, imported when called."""
