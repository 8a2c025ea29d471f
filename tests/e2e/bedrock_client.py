"""Call Bedrock with the official client, once for each line of the input, and print what it received: JSON lines.

It runs with the Python of `bench.tap.peers.python_peers`, because boto3 needs other versions than Streamgauge's packages.
"""

import base64
import json
import sys
import time

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError


def client(endpoint_url, proxy=None, sign=None):
    proxies = {"http": proxy} if proxy else None
    made = boto3.client(
        "bedrock-runtime",
        endpoint_url=endpoint_url,
        region_name="eu-central-1",
        aws_access_key_id="AKIAIOSFODNN7EXAMPLE",
        aws_secret_access_key="planted",
        config=Config(retries={"total_max_attempts": 1}, proxies=proxies),
    )
    made.meta.events.register(
        "before-sign.bedrock-runtime",
        lambda request, **_: [request.headers.add_header(*item) for item in (sign or {}).items()],
    )
    return made


def call(bedrock, operation, model, found):
    text = [{"role": "user", "content": [{"text": "How high is the river?"}]}]
    if operation.startswith("invoke"):
        parameters = {"body": json.dumps({"prompt": "How high is the river?"})}
    else:
        parameters = {"messages": text}
    answer = getattr(bedrock, operation)(modelId=model, **parameters)
    if operation == "converse":
        del answer["ResponseMetadata"]
        found["events"].append((answer, None))
        return
    stream = answer["stream"] if operation == "converse_stream" else answer["body"]
    raw = stream._raw_stream
    read = raw.stream

    def kept(*args, **kwargs):
        for data in read(*args, **kwargs):
            found["body"] += base64.b64encode(data).decode() + "\n"
            yield data

    raw.stream = kept
    for event in stream:
        event = json.loads(event["chunk"]["bytes"]) if "chunk" in event else event
        found["events"].append((event, time.monotonic_ns()))


def main():
    for line in sys.stdin:
        what = json.loads(line)
        found = {"events": [], "body": "", "error": None, "message": None}
        try:
            call(client(**what["client"]), what["operation"], what["model"], found)
        except ClientError as e:  # EventStreamError, too
            found["error"] = e.response["Error"]["Code"]
            found["message"] = e.response["Error"]["Message"]
        except Exception as e:
            found["error"] = type(e).__name__
        print(json.dumps(found), flush=True)


main()
