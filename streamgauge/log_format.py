"""Format of log lines: text, or one JSON object per line."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime

from streamgauge.ingest.log_lines import LogFormatter, log_uncaught, without_values
from streamgauge.last_error import LAST_ERROR


class JsonLines(LogFormatter):
    """Formats a record as a JSON object: time, level, logger, message, trace and span id, exception."""

    def format(self, record: logging.LogRecord) -> str:
        record = without_values(record)
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        for name in ("trace_id", "span_id"):
            value = getattr(record, name, None)
            if value is not None:
                line[name] = value
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure_logging(form: str) -> None:
    """Log to stderr in format "text" or "json"; libraries from level WARNING."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else LogFormatter())
    logging.basicConfig(level=logging.WARNING, handlers=[handler, LAST_ERROR], force=True)
    log_uncaught(logging.getLogger("streamgauge"))
    logging.getLogger("streamgauge").setLevel(logging.INFO)
