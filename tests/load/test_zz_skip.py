import pytest


def test_skip():
    pytest.skip("nothing here")
