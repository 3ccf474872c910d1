"""What the service does, one verb a module: load, one pure call, save."""
