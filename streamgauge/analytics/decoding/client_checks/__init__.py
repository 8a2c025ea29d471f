"""What strict clients cannot read of a stream: the rules that it breaks."""
