"""Bearer tokens by their hash."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

from sqlalchemy import Connection, select, update

from kvyield_server.errors import NotFoundError
from kvyield_server.storage import tables
from kvyield_server.storage.records import ApiToken
from kvyield_server.storage.rows import token_from_row, token_to_row
from kvyield_server.storage.statements import insert_rows
from kvyield_server.storage.values import refuse_unstorable

_it = tables.api_token.c


class Tokens:
    """Bearer tokens by their hash."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def add(self, token: ApiToken) -> None:
        """Keep a token. ConflictError when its id or hash is already stored."""
        refuse_unstorable(token)
        insert_rows(self._connection, tables.api_token, [token_to_row(token)])

    def by_hash(self, token_hash: str) -> ApiToken | None:
        """Return the token with that hash, valid or not."""
        query = select(tables.api_token).where(_it.token_hash == token_hash)
        row = self._connection.execute(query).mappings().first()
        return None if row is None else token_from_row(row)

    def list(self) -> tuple[ApiToken, ...]:
        """Return all tokens, newest first, the revoked and expired ones too."""
        query = select(tables.api_token).order_by(_it.created_at.desc(), _it.id.desc())
        return tuple(token_from_row(row) for row in self._connection.execute(query).mappings())

    def revoke(self, token_id: UUID, at: datetime) -> ApiToken:
        """Mark a token as revoked; a second time changes nothing."""
        valid = (_it.id == token_id, _it.revoked_at.is_(None))
        self._connection.execute(update(tables.api_token).where(*valid).values(revoked_at=at))
        row = self._connection.execute(select(tables.api_token).where(_it.id == token_id)).mappings().first()
        if row is None:
            raise NotFoundError(f"No token has the id {token_id}.")
        return token_from_row(row)

    def touch(self, token_id: UUID, at: datetime) -> None:
        """Note when a token was last used; an unknown token is not an error."""
        self._connection.execute(update(tables.api_token).where(_it.id == token_id).values(last_used_at=at))
