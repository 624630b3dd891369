"""WebShop; `environments.webshop:WebShop` names it in configs."""

from environments.webshop.environment import WebShop

__all__ = ["WebShop"]
