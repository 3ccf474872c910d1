"""The engines: what each calls its flags, what they do to the pool, and what a token costs it.

Adding an engine is adding its module here, an entry in ``registry``, and its reader in the client.
"""
