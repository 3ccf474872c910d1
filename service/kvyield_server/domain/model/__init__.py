"""The yield model: pool tokens, free memory and prompt need as functions of the flags, with uncertainty."""
