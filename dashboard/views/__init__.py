"""The pages: Streamlit runs one of these files for each request."""
