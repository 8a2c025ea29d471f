"""The processes of a tap: worker, supervisor, admin port."""
