BEGIN TRANSACTION;
CREATE TABLE answers (
	caller VARCHAR NOT NULL, 
	endpoint VARCHAR(16) NOT NULL, 
	"key" VARCHAR(255) NOT NULL, 
	fingerprint VARCHAR(64) NOT NULL, 
	execution_id VARCHAR(36), 
	answer JSON NOT NULL, 
	created_at FLOAT NOT NULL, 
	PRIMARY KEY (caller, endpoint, "key")
);
INSERT INTO "answers" VALUES('organization','kickoff','key-1','d6a738a9959187219487239ee89947b17d118b76fb223bfa0d3d45242a004e8b','8c9e72f2-3952-465e-8012-519c3f4fbadd','{"kickoff_id": "8c9e72f2-3952-465e-8012-519c3f4fbadd"}',1.79528378921130251887e+09);
CREATE TABLE executions (
	id VARCHAR(36) NOT NULL, 
	kickoff_id VARCHAR(36) NOT NULL, 
	owner VARCHAR, 
	state VARCHAR(16) NOT NULL, 
	segment INTEGER NOT NULL, 
	created_at FLOAT NOT NULL, 
	due_at FLOAT NOT NULL, 
	updated_at FLOAT NOT NULL, 
	ended_at FLOAT, 
	work_seconds FLOAT NOT NULL, 
	counted_at FLOAT, 
	inputs JSON NOT NULL, 
	meta JSON, 
	webhooks JSON, 
	completed_tasks INTEGER NOT NULL, 
	current_task JSON, 
	current_agent JSON, 
	last_task JSON, 
	last_step JSON, 
	gate JSON, 
	asked JSON NOT NULL, 
	tasks JSON, 
	output JSON, 
	output_json JSON, 
	usage JSON, 
	error JSON, 
	PRIMARY KEY (id), 
	UNIQUE (kickoff_id)
);
INSERT INTO "executions" VALUES('8c9e72f2-3952-465e-8012-519c3f4fbadd','8c9e72f2-3952-465e-8012-519c3f4fbadd',NULL,'completed',2,1.79528378921130251887e+09,1.79528378946056222913e+09,1.79528379453501152991e+09,1.79528379453501152991e+09,5.11230127799990441417e+00,1.79528379453188824651e+09,'{"topic": "done"}','{"order": 7}',NULL,3,NULL,'"Editor"','{"task_id": "publish_task", "name": "publish_task", "agent": "Editor", "description": "", "expected_output": "", "summary": "All on done", "output": "All on done", "output_json": null, "execution_time": 5.01}','{"prompt": "", "thought": "Editor is done.", "tool": "", "tool_input": "", "result": "All on done"}',NULL,'["draft_task"]','[{"task_id": "research_task", "agent": "Researcher", "output": "Notes on done", "execution_time": 0.022}, {"task_id": "draft_task", "agent": "Writer", "output": "Draft 1 on done", "execution_time": 0.037}, {"task_id": "publish_task", "agent": "Editor", "output": "All on done", "execution_time": 5.01}]','"All on done"',NULL,'{"total_tokens": 0, "prompt_tokens": 0, "completion_tokens": 0}',NULL);
INSERT INTO "executions" VALUES('3d8d0d16-3ef5-4b66-916d-295cd5358f0f','3d8d0d16-3ef5-4b66-916d-295cd5358f0f','ann','waiting',2,1.79528379456601619714e+09,1.79528379462450098993e+09,1.79528379464102959628e+09,NULL,1.3391074000082880957e-02,1.795283794632715702e+09,'{"topic": "wait"}',NULL,'{"human_input": {"url": "http://127.0.0.1:9/ask", "authentication": {"strategy": "bearer", "token": "hook-token"}}}',1,'"draft_task"','"Writer"','{"task_id": "research_task", "name": "research_task", "agent": "Researcher", "description": "", "expected_output": "", "summary": "Notes on wait", "output": "Notes on wait", "output_json": null, "execution_time": 0.002}','{"prompt": "", "thought": "Writer is done.", "tool": "", "tool_input": "", "result": "Draft 2 on wait, after: Shorter."}','{"task_id": "draft_task", "key": "draft_task", "output": "Draft 2 on wait, after: Shorter.", "agent": "Writer", "state": {"seconds": 0.005}, "rounds": [{"output": "Draft 1 on wait", "feedback": "Shorter."}]}','["draft_task", "draft_task"]',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "executions" VALUES('e1b65ac9-7130-44f3-b1b3-b4f8f798c7d0','e1b65ac9-7130-44f3-b1b3-b4f8f798c7d0',NULL,'stopped',1,1.7952837949358530045e+09,1.7952837949358530045e+09,1.79528379499315047258e+09,1.79528379499315047258e+09,1.60097880000193981686e-02,1.79528379494989323615e+09,'{"topic": "stop"}',NULL,NULL,1,'"draft_task"','"Writer"','{"task_id": "research_task", "name": "research_task", "agent": "Researcher", "description": "", "expected_output": "", "summary": "Notes on stop", "output": "Notes on stop", "output_json": null, "execution_time": 0.003}','{"prompt": "", "thought": "Writer is done.", "tool": "", "tool_input": "", "result": "Draft 1 on stop"}',NULL,'["draft_task"]',NULL,NULL,NULL,NULL,'"Stopped on request"');
INSERT INTO "executions" VALUES('17343fed-3a05-413c-98cd-d16c5946aab8','17343fed-3a05-413c-98cd-d16c5946aab8',NULL,'running',1,1.79528379499818468087e+09,1.79528379499818468087e+09,1.79528379505249619484e+09,NULL,3.09663359998921805527e-02,1.79528379503666877742e+09,'{"topic": "run", "review": "no"}',NULL,NULL,2,'"publish_task"','"Editor"','{"task_id": "draft_task", "name": "draft_task", "agent": "Writer", "description": "", "expected_output": "", "summary": "Draft 1 on run", "output": "Draft 1 on run", "output_json": null, "execution_time": 0.007}','{"prompt": "", "thought": "Writer is done.", "tool": "", "tool_input": "", "result": "Draft 1 on run"}',NULL,'[]',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "executions" VALUES('25eb8cfb-39bd-4a7b-9ce2-1bf26d59cb87','25eb8cfb-39bd-4a7b-9ce2-1bf26d59cb87',NULL,'running',1,1.79528379500124645232e+09,1.79528379500124645232e+09,1.79528379506356739999e+09,NULL,3.43359019998388248495e-02,1.79528379505460405352e+09,'{"topic": "run too", "review": "no"}',NULL,NULL,2,'"publish_task"','"Editor"','{"task_id": "draft_task", "name": "draft_task", "agent": "Writer", "description": "", "expected_output": "", "summary": "Draft 1 on run too", "output": "Draft 1 on run too", "output_json": null, "execution_time": 0.02}','{"prompt": "", "thought": "Writer is done.", "tool": "", "tool_input": "", "result": "Draft 1 on run too"}',NULL,'[]',NULL,NULL,NULL,NULL,NULL);
INSERT INTO "executions" VALUES('2525bacb-9f6b-4bb6-a526-03c6049f873a','2525bacb-9f6b-4bb6-a526-03c6049f873a',NULL,'queued',0,1.79528379572250938421e+09,1.79528379572250938421e+09,1.79528379572250938421e+09,NULL,0.0,NULL,'{"topic": "queue"}',NULL,NULL,0,NULL,NULL,NULL,NULL,NULL,'[]',NULL,NULL,NULL,NULL,NULL);
CREATE TABLE outbox (
	id INTEGER NOT NULL, 
	execution_id VARCHAR(36) NOT NULL, 
	kind VARCHAR(16) NOT NULL, 
	url JSON NOT NULL, 
	body JSON NOT NULL, 
	attempts INTEGER NOT NULL, 
	due_at FLOAT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "outbox" VALUES(1,'3d8d0d16-3ef5-4b66-916d-295cd5358f0f','human_input','"http://127.0.0.1:9/ask"','{"execution_id": "3d8d0d16-3ef5-4b66-916d-295cd5358f0f", "task_id": "draft_task", "task_output": "Draft 2 on wait, after: Shorter.", "kickoff_id": "3d8d0d16-3ef5-4b66-916d-295cd5358f0f", "meta": null}',1,1.79528379564824342728e+09);
CREATE TABLE results (
	execution_id VARCHAR(36) NOT NULL, 
	position INTEGER NOT NULL, 
	task JSON NOT NULL, 
	PRIMARY KEY (execution_id, position)
);
INSERT INTO "results" VALUES('8c9e72f2-3952-465e-8012-519c3f4fbadd',0,'{"task_id": "research_task", "name": "research_task", "agent": "Researcher", "description": "", "expected_output": "", "summary": "Notes on done", "output": "Notes on done", "output_json": null, "execution_time": 0.022}');
INSERT INTO "results" VALUES('8c9e72f2-3952-465e-8012-519c3f4fbadd',1,'{"task_id": "draft_task", "name": "draft_task", "agent": "Writer", "description": "", "expected_output": "", "summary": "Draft 1 on done", "output": "Draft 1 on done", "output_json": null, "execution_time": 0.037}');
INSERT INTO "results" VALUES('8c9e72f2-3952-465e-8012-519c3f4fbadd',2,'{"task_id": "publish_task", "name": "publish_task", "agent": "Editor", "description": "", "expected_output": "", "summary": "All on done", "output": "All on done", "output_json": null, "execution_time": 5.01}');
INSERT INTO "results" VALUES('3d8d0d16-3ef5-4b66-916d-295cd5358f0f',0,'{"task_id": "research_task", "name": "research_task", "agent": "Researcher", "description": "", "expected_output": "", "summary": "Notes on wait", "output": "Notes on wait", "output_json": null, "execution_time": 0.002}');
INSERT INTO "results" VALUES('e1b65ac9-7130-44f3-b1b3-b4f8f798c7d0',0,'{"task_id": "research_task", "name": "research_task", "agent": "Researcher", "description": "", "expected_output": "", "summary": "Notes on stop", "output": "Notes on stop", "output_json": null, "execution_time": 0.003}');
INSERT INTO "results" VALUES('17343fed-3a05-413c-98cd-d16c5946aab8',0,'{"task_id": "research_task", "name": "research_task", "agent": "Researcher", "description": "", "expected_output": "", "summary": "Notes on run", "output": "Notes on run", "output_json": null, "execution_time": 0.007}');
INSERT INTO "results" VALUES('25eb8cfb-39bd-4a7b-9ce2-1bf26d59cb87',0,'{"task_id": "research_task", "name": "research_task", "agent": "Researcher", "description": "", "expected_output": "", "summary": "Notes on run too", "output": "Notes on run too", "output_json": null, "execution_time": 0.007}');
INSERT INTO "results" VALUES('17343fed-3a05-413c-98cd-d16c5946aab8',1,'{"task_id": "draft_task", "name": "draft_task", "agent": "Writer", "description": "", "expected_output": "", "summary": "Draft 1 on run", "output": "Draft 1 on run", "output_json": null, "execution_time": 0.007}');
INSERT INTO "results" VALUES('25eb8cfb-39bd-4a7b-9ce2-1bf26d59cb87',1,'{"task_id": "draft_task", "name": "draft_task", "agent": "Writer", "description": "", "expected_output": "", "summary": "Draft 1 on run too", "output": "Draft 1 on run too", "output_json": null, "execution_time": 0.02}');
CREATE INDEX executions_by_end ON executions (ended_at);
CREATE INDEX executions_by_turn ON executions (state, due_at);
CREATE INDEX executions_by_owner ON executions (owner, created_at);
CREATE INDEX executions_by_age ON executions (created_at);
CREATE INDEX ix_outbox_execution_id ON outbox (execution_id);
CREATE INDEX ix_outbox_due_at ON outbox (due_at);
CREATE INDEX ix_answers_execution_id ON answers (execution_id);
COMMIT;
PRAGMA user_version=1;
