"""`python -m streamgauge` is the `streamgauge` command."""

from streamgauge.cli import main

if __name__ == "__main__":
    main()
