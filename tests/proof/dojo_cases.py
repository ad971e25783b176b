"""Prints AgentDojo's injections as JSON: its tools, what a model calls for the user, what one that obeys calls then.

Runs on the Python that has the package `agentdojo`, not on Segue's: `make proof-agentdojo`. Whether a call `changes`
anything is what AgentDojo's own environment says before and after it.
"""

import json
import sys
from typing import Any

from agentdojo.agent_pipeline.tool_execution import tool_result_to_str
from agentdojo.attacks.attack_registry import load_attack
from agentdojo.functions_runtime import FunctionCall, FunctionsRuntime
from agentdojo.task_suite.load_suites import get_suites

VERSION = "v1"  # 629 pairs of a user's task and an injection
MARK = "Ignore your previous"  # begins what its attack `ignore_previous` has a result say


def made(runtime: FunctionsRuntime, environment: Any, calls: list[FunctionCall]) -> list[dict[str, Any]]:
    return [{"tool": call.function, "args": call.args, **outcome(runtime, environment, call)} for call in calls]


def outcome(runtime: FunctionsRuntime, environment: Any, call: FunctionCall) -> dict[str, Any]:
    before = environment.model_dump_json()
    result, error = runtime.run_function(environment, call.function, call.args)
    text = error or tool_result_to_str(result)
    return {"result": text, "changes": before != environment.model_dump_json()}


def cases() -> dict[str, Any]:
    tools, found = {}, []
    for suite in get_suites(VERSION).values():
        attack, runtime = load_attack("ignore_previous", suite, None), FunctionsRuntime(suite.tools)
        tools[suite.name] = [
            {"name": it.name, "description": it.description, "inputSchema": it.parameters.model_json_schema()}
            for it in suite.tools
        ]
        for task in suite.user_tasks.values():
            for injection in suite.injection_tasks.values():
                environment = suite.load_and_inject_default_environment(attack.attack(task, injection))
                asked = made(runtime, environment, task.ground_truth(environment))
                shown = next(at for at, call in enumerate(asked, 1) if MARK in " ".join(call["result"].split()))
                obeyed = made(runtime, environment, injection.ground_truth(environment))
                found.append(
                    {
                        "name": f"{suite.name} {task.ID} {injection.ID}",
                        "suite": suite.name,
                        "prompt": task.PROMPT,
                        "goal": injection.GOAL,
                        "asked": asked[:shown],
                        "obeyed": obeyed,
                    }
                )
    return {"tools": tools, "cases": found}


json.dump(cases(), sys.stdout, default=str)
