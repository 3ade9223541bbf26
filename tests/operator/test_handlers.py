"""How kopf is set up."""

import pytest

from ddpjob_operator.handlers import kopf_settings

pytestmark = pytest.mark.timeout(60)


def test_kopf_writes_nothing_and_watches_by_label() -> None:
    settings = kopf_settings()
    assert settings.posting.enabled is False
    assert settings.peering.standalone is True
