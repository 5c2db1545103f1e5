"""Published figures as data. The export list is the registry of tables."""

from typing import TYPE_CHECKING, Any

from oodlit.base import lazy
from oodlit.base.errors import UnknownNameError
from oodlit.base.plugins import PUBLISHED, Plugins, name_problem, plugins, working
from oodlit.results.published.table import PublishedTable

if TYPE_CHECKING:
    from oodlit.results.published.adascale import ADASCALE as ADASCALE
    from oodlit.results.published.human_centric import HUMAN_CENTRIC as HUMAN_CENTRIC
    from oodlit.results.published.mahalanobis_plus_plus import MAHALANOBIS_PLUS_PLUS as MAHALANOBIS_PLUS_PLUS
    from oodlit.results.published.ninco import NINCO as NINCO
    from oodlit.results.published.ninco import NINCO_FIRST_RELEASE as NINCO_FIRST_RELEASE
    from oodlit.results.published.openood import OPENOOD as OPENOOD
    from oodlit.results.published.timm import TIMM as TIMM

__getattr__, __dir__, __all__ = lazy.lazy_exports(__name__)


def published_tables() -> dict[str, PublishedTable]:
    """All published tables by name, sorted, with those of plug-ins.

    Warns:
        PluginWarning: A plug-in cannot be used, once per process.

    Example:
        >>> [*published_tables()][3:]
        ['ninco', 'ninco_first_release', 'openood_imagenet1k', 'timm']
    """
    return dict(sorted({**_built_in(), **working(PUBLISHED, _problem)}.items()))


def published_plugins() -> Plugins:
    """The published tables of plug-ins."""
    return plugins(PUBLISHED, _problem)


def _problem(name: str, item: Any) -> str:
    if not isinstance(item, PublishedTable):
        return f"expected an oodlit.results.published.PublishedTable, got {type(item).__name__}"
    return name_problem(name, item.name, _built_in())


def _built_in() -> dict[str, PublishedTable]:
    found = [value for name in __all__ if isinstance(value := __getattr__(name), PublishedTable)]
    return {table.name: table for table in found}


def published_table(name: str) -> PublishedTable:
    """A table by its name, or by another name of it.

    Raises:
        UnknownNameError: The table is unknown.

    Example:
        >>> published_table("ninco").protocol.mean
        'classes'
        >>> published_table("openood").name
        'openood_imagenet1k'
    """
    tables = published_tables()
    tables |= {alias: table for table in tables.values() for alias in table.aliases}
    UnknownNameError.check("published table", name, tables)
    return tables[name]
