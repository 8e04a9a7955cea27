"""Canonical bytes: equal for equal values, different for different ones."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vectors import load

from protocol.encoding import (
    canonical_json,
    decode_token_ids,
    digest,
    encode_field,
    encode_fields,
    encode_token_ids,
)
from protocol.errors import LocalProtocolError

FIELDS = st.one_of(
    st.binary(max_size=8), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False)
)


@pytest.mark.parametrize("vector", load("encoding")["fields"], ids=lambda vector: str(vector["fields"]))
def test_fields_are_encoded_as_in_the_vectors(vector: dict[str, Any]) -> None:
    assert encode_fields(vector["fields"]).hex() == vector["bytes"]


@pytest.mark.parametrize("vector", load("encoding")["digests"], ids=lambda vector: str(vector["fields"]))
def test_digests_are_those_of_the_vectors(vector: dict[str, Any]) -> None:
    assert digest(vector["domain"], *vector["fields"]).hex() == vector["digest"]


@given(st.lists(st.binary(max_size=4), max_size=5), st.lists(st.binary(max_size=4), max_size=5))
def test_two_lists_share_an_encoding_only_if_they_are_equal(left: list[bytes], right: list[bytes]) -> None:
    assert (encode_fields(left) == encode_fields(right)) == (left == right)


@pytest.mark.parametrize(
    "value",
    [True, 2**63, -(2**63) - 1, math.nan, math.inf, "\ud800"],
    ids=["bool", "big", "small", "nan", "inf", "surrogate"],
)
def test_values_without_canonical_bytes_are_refused(value: Any) -> None:
    with pytest.raises(LocalProtocolError):
        encode_field(value)


def test_the_two_zeros_are_one() -> None:
    assert encode_field(-0.0) == encode_field(0.0)


@given(st.lists(st.integers(0, 2**32 - 1)))
def test_token_ids_come_back(ids: list[int]) -> None:
    assert decode_token_ids(encode_token_ids(ids)) == ids


@pytest.mark.parametrize("ids", [[-1], [2**32]])
def test_what_is_no_token_id_is_refused(ids: list[int]) -> None:
    with pytest.raises(LocalProtocolError):
        encode_token_ids(ids)


def test_canonical_json_does_not_depend_on_the_order_of_keys() -> None:
    assert canonical_json({"b": 1, "a": "é"}) == canonical_json({"a": "é", "b": 1}) == '{"a":"é","b":1}'.encode()
    with pytest.raises(LocalProtocolError):
        canonical_json(math.nan)
