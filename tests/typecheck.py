"""The type checker of the suite: beartype, with int accepted where float is said, as everywhere else in Python."""

from beartype import BeartypeConf, beartype

check = beartype(conf=BeartypeConf(is_pep484_tower=True))
