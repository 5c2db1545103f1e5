"""oodlit.datamodules."""
