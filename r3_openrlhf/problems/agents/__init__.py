"""Tasks of many turns: environments, the prompt that a memory gives, trajectories and their
advantages. No framework.

An episode of your own policy, `respond(prompt) -> text` (tests/problems/agents/test_episode.py):

    environment = make_environment("vault", {})
    episode = Episode(environment.reset(7), task_uid="vault/7", trajectory_uid="0", settings=config.agents)
    while (prompt := episode.next_prompt(count=count_tokens, max_tokens=512)) is not None:
        episode.advance(environment.step(episode.act(respond(prompt), truncated=False)))
    trajectory = episode.trajectory()

and of the trajectories of one task: `advantages_of_task(trajectories, config.agents)`."""
