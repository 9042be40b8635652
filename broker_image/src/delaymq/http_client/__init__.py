"""A small synchronous client of brokers' HTTP: one request after another, within limits.

Invariant: nothing is retried, no redirect is followed and no error shows the token. What an answer means is left to
the caller, who has the types of delaymq.api_types.
"""

from delaymq.http_client.client import HttpClient, NotSentError, Reply
from delaymq.http_client.response import AnswerCutError, AnswerTooLargeError, Pace, Response, problem_of

__all__ = [
    "AnswerCutError",
    "AnswerTooLargeError",
    "HttpClient",
    "NotSentError",
    "Pace",
    "Reply",
    "Response",
    "problem_of",
]
