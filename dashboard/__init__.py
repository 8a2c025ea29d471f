"""The Streamlit dashboard. It knows the tables by SQL alone."""
