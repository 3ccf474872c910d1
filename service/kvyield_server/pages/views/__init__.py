"""View models: from what the use cases return to what a template shows. Pure, and tested without a browser."""
