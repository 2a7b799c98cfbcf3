"""A demo has a home as other commands have."""

from tests.unit.commands.conftest import home  # noqa: F401 a fixture
