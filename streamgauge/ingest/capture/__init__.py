"""Record the exchanges that packets show: of a capture file, or of a network interface."""
