"""How `launch` tells the pages what it was told: environment variables, because Streamlit runs the pages as scripts."""

ENV_DATA = "STREAMGAUGE_DATA"
ENV_STORE = "STREAMGAUGE_STORE"
ENV_SLO_TTFT = "STREAMGAUGE_SLO_TTFT"
ENV_SLO_ITL = "STREAMGAUGE_SLO_ITL"
ENV_SLO_ERROR_RATE = "STREAMGAUGE_SLO_ERROR_RATE"
ENV_OIDC = "STREAMGAUGE_DASHBOARD_OIDC"
