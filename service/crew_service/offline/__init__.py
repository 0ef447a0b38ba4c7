"""`airflow-crew-service offline-model`: an OpenAI-compatible server that needs no network, for development and tests.

It replaces a crew's real model without changes to the crew: chats, responses and embeddings, streamed or not.

* Each chat gets the same answer, unless a file maps a word in the question to another one (`answers`).
* Where the request demands a shape, the answer has it: an object for a schema, arguments for a required tool
  (`example`), the final words that CrewAI's prompts ask for. So an unchanged crew runs to its end.
* The same request always gets the same answer, and texts with common words have similar embeddings.
* An answer of the file can name tools; the model calls one after the other, then gives its text.
"""
