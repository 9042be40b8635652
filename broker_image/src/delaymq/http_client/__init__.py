"""A small synchronous HTTP client for brokers, with sequential requests and limits.

Invariant: requests are not retried, redirects are not followed, and errors never contain the token. Callers decode
responses with the types of delaymq.api_types.
"""

from delaymq.http_client.client import HttpClient, HttpsOptions, NotSentError, RefusedError, Reply
from delaymq.http_client.response import AnswerCutError, AnswerTooLargeError, Pace, Response, problem_of

__all__ = [
    "AnswerCutError",
    "AnswerTooLargeError",
    "HttpClient",
    "HttpsOptions",
    "NotSentError",
    "Pace",
    "RefusedError",
    "Reply",
    "Response",
    "problem_of",
]
