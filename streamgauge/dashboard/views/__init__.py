"""The pages. Each rerun of Streamlit runs one of these files."""
