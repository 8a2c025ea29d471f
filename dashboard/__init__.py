"""The Streamlit dashboard. Knows nothing but SQL, asked over Quack."""
