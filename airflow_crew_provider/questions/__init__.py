"""What a person can be asked: one class for each kind of question, made from stored JSON by `question_in` alone.

A question is about a crew's draft, a Flow's question, a tool call, an agent's question, or a tool call with an unknown
outcome. Its class knows what is shown, the choices and what they mean, who is needed, which choice needs text, what may
be edited, and what the deadline may choose. Pure functions.
"""

from airflow_crew_provider.questions.kinds import Draft, Question, Terms, answered_in, question_in, question_of

__all__ = ["Draft", "Question", "Terms", "answered_in", "question_in", "question_of"]
