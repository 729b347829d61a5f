"""Signatures, against the example of AWS's documentation."""

from calendar import timegm

from awscrt.auth import AwsCredentials

from ucfuse.store.s3.sigv4 import RequestSigner

EXAMPLE = AwsCredentials("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", None)
HOST = "examplebucket.s3.amazonaws.com"
DAY_S = timegm((2013, 5, 24, 0, 0, 0))


def signed_on(now_s: float, credentials: AwsCredentials | None = EXAMPLE) -> dict[str, str]:
    signer = RequestSigner(HOST, "us-east-1")
    return dict(signer.signed("GET", "/test.txt", [("range", "bytes=0-9")], credentials, now_s))


def test_a_range_is_signed_as_in_the_documentation() -> None:
    headers = signed_on(DAY_S)
    assert headers["x-amz-date"] == "20130524T000000Z"
    assert headers["authorization"].endswith(
        "SignedHeaders=host;range;x-amz-content-sha256;x-amz-date,"
        "Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"
    )


def test_the_key_of_another_day_or_of_other_credentials_is_another_one() -> None:
    signer = RequestSigner(HOST, "us-east-1")
    other = AwsCredentials("AKIAIOSFODNN7EXAMPLE", "another secret", None)
    cases = [(EXAMPLE, DAY_S), (EXAMPLE, DAY_S + 86_400), (other, DAY_S), (EXAMPLE, DAY_S)]
    told = [
        dict(signer.signed("GET", "/test.txt", [("range", "bytes=0-9")], *case))["authorization"]
        for case in cases
    ]
    assert told[0] == told[3] == signed_on(DAY_S)["authorization"]
    assert len(set(told)) == 3


def test_a_session_token_is_sent_and_signed() -> None:
    headers = signed_on(DAY_S, AwsCredentials("key", "secret", "token"))
    assert headers["x-amz-security-token"] == "token"
    assert "x-amz-security-token" in headers["authorization"]


def test_without_credentials_nothing_is_signed() -> None:
    assert signed_on(DAY_S, None) == {"host": HOST, "range": "bytes=0-9"}
