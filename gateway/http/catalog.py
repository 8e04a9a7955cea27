"""What can be ordered: the architectures that are served."""

from aiohttp import web

from protocol.models import ARCHITECTURES


async def get_catalog(_request: web.Request) -> web.Response:
    """The names that config.json may have as architectures[0]."""
    return web.json_response({"object": "generation_catalog", "architectures": list(ARCHITECTURES)})
