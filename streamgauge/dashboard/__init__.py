"""The Streamlit dashboard. It reads the tables only by SQL."""
