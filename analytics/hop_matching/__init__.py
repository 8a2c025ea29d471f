"""Find the inner streams (gateway to model) of each outer stream (client to gateway), and write the tables of hops."""
