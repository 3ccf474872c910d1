"""The JSON API over HTTP: handlers of about ten lines, and what they share."""
