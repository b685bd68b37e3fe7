"""Load for a running server of OpenAI's protocol, this one or another: what is asked, when, how it is answered."""
