"""What every test of a running cluster needs: namespaces, or a plain reason why there are none."""

from __future__ import annotations

import pytest

from bench.cluster.network import Network
from bench.cluster.running import Cluster
from busbar.errors import Unavailable


@pytest.fixture(scope="session")
def namespaces() -> None:
    """Skips where no cluster can be made, with the one sentence that a user would get."""
    try:
        with Cluster(Network(hosts=1, rate=1e7)):
            pass
    except Unavailable as error:
        pytest.skip(f"no cluster here: {error}")
