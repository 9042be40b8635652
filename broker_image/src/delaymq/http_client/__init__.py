"""A small synchronous client of brokers' HTTP: one request after another, within limits.

Invariant: nothing is retried, no redirect is followed and no error shows the token. What an answer means is left to
the caller, who has the types of delaymq.api_types.
"""

from delaymq.http_client.client import AnswerTooLargeError, HttpClient, NotSentError, Reply

__all__ = ["AnswerTooLargeError", "HttpClient", "NotSentError", "Reply"]
