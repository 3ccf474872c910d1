"""The ledger on disk: SQLite or PostgreSQL behind one unit of work, and the same in memory."""
