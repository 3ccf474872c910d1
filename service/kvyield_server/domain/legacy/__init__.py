"""The first yield model, kept only until the new one has replaced it behind the same door."""
