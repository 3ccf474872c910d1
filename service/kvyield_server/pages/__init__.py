"""Server-rendered pages: view models that are pure, templates, and handlers that call the API's own use cases."""
