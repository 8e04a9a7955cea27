"""Pages of lists, as OpenAI's cursors do them."""

from typing import Annotated, Generic, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, Field

from gateway.core.identifiers import can_be_id
from gateway.db.paging import Page
from gateway.errors import InvalidRequest
from gateway.http.bodies import Digits, Query

MAX_LIMIT = 100


def _id(text: str) -> str:
    if not can_be_id(text):
        raise ValueError("not an id")
    return text


Id = Annotated[str, AfterValidator(_id), Field(max_length=128)]
Limit = Annotated[Digits, Field(ge=1, le=MAX_LIMIT, description=f"a number from 1 to {MAX_LIMIT}")]
After = Annotated[Id | None, Field(description="the id of the last item of the page before")]


class FilesQuery(Query):
    """Which files to list: the 100 most recent ones, unless it says otherwise."""

    after: After = None
    limit: Limit = MAX_LIMIT
    order: Annotated[Literal["asc", "desc"], Field(description="asc or desc, by creation")] = "desc"
    purpose: Annotated[Id | None, Field(description="a word such as batch or batch_output")] = None

    def page(self) -> Page:
        """As the database takes it."""
        return Page(self.limit, self.after, self.order, self.purpose)


class BatchesQuery(Query):
    """Which batches to list, newest first."""

    after: After = None
    limit: Limit = 20


def unknown_cursor(after: str | None) -> InvalidRequest:
    """The refusal of a cursor that is not in the list."""
    return InvalidRequest("invalid_after", f"there is nothing with the id {after} to begin after", param="after")


class Listed(BaseModel):
    """Base of what lists hold."""

    id: str


Item = TypeVar("Item", bound=Listed)


class ListObject(BaseModel, Generic[Item]):
    """OpenAI's list envelope; has_more is true only if a next page exists."""

    object: Literal["list"] = "list"
    data: list[Item]
    first_id: str | None
    last_id: str | None
    has_more: bool

    @classmethod
    def of(cls, data: list[Item], *, has_more: bool) -> Self:
        """The page that holds these."""
        first, last = (data[0].id, data[-1].id) if data else (None, None)
        return cls(data=data, first_id=first, last_id=last, has_more=has_more)
