"""What the package promises to those who import it."""

from __future__ import annotations

import inspect

import kvyield
from kvyield import _errors
from kvyield._api import Api, AsyncApi


def test_public_names_are_sorted_and_there() -> None:
    """Every name in ``__all__`` can be had, in order, and nothing that is not there pretends to be."""
    assert kvyield.__all__ == sorted(kvyield.__all__)
    assert all(getattr(kvyield, name) is not None for name in kvyield.__all__)
    assert not hasattr(kvyield, "no_such_name")


def test_all_is_what_is_public() -> None:
    """What a reader of the module sees without an underscore, submodules aside, is what ``__all__`` lists."""
    seen = {name for name, value in vars(kvyield).items() if not name.startswith("_") and not inspect.ismodule(value)}
    private = {"annotations", "import_module", "TYPE_CHECKING"}
    assert (seen | set(kvyield._LAZY)) - private == set(kvyield.__all__)


def test_every_struct_that_is_sent_can_be_built_from_public_names() -> None:
    """Whoever builds an observation needs no private module."""
    assert {"Engine", "Failure", "Hardware", "Measurements", "Model", "Observation", "Verification"} <= set(
        kvyield.__all__
    )


def test_the_error_tree_has_one_root_and_is_drawn_whole() -> None:
    """Each public error is below the one root and stands in the drawing of the tree."""
    errors = [name for name in kvyield.__all__ if name.endswith("Error")]
    assert all(issubclass(getattr(kvyield, name), kvyield.KvyieldError) for name in errors)
    assert all(name in (_errors.__doc__ or "") for name in errors)


def test_both_clients_have_the_same_methods() -> None:
    """The asynchronous client has every method of the synchronous one, with the same parameters and documentation."""
    for name, method in inspect.getmembers(Api, inspect.isfunction):
        twin = getattr(AsyncApi, name)
        assert list(inspect.signature(method).parameters) == list(inspect.signature(twin).parameters)
        assert inspect.getdoc(method) == inspect.getdoc(twin)
        assert name.startswith("_") or inspect.getdoc(method)
    assert list(inspect.signature(kvyield.Client.export).parameters) == ["self", "file_format"]
    assert (
        inspect.signature(kvyield.Client.export).parameters == inspect.signature(kvyield.AsyncClient.export).parameters
    )
