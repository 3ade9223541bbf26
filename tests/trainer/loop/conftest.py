import pytest
from tests.trainer.loop.crew import Crew


@pytest.fixture(scope="session")
def crew(tmp_path_factory):
    crew = Crew(tmp_path_factory.mktemp("crew"))
    yield crew
    crew.dismiss()
